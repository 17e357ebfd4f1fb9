"""Whole tasks for kinds of robots: a subclass gives the numbers of its robot."""
