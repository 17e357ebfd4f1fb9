"""What the robot is asked: pure terms for one env and one step."""
