"""What is checked and measured before the first iteration: what hooks return, devices, memory."""
