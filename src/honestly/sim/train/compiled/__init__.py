"""Small models trained by a C program of a few hundred lines, compiled on the user's machine if it has a compiler."""
