"""How long things take: prices of single tasks, and the replay of a program."""
