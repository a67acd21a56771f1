"""The files of runs: records of rounds, folders of runs, stores of studies, and their readers."""
