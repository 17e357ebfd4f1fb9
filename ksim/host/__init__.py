"""Small parts of the host side that know nothing of training: files, the terminal, the machine, notices, YAML."""
