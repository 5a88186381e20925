"""Times: prices of single tasks, and the replay of a program."""
