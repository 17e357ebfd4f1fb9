"""The terms of the MDP: pure functions of one env and one step."""
