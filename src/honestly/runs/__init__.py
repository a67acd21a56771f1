"""What runs leave behind: records of rounds, folders of runs, stores of studies, and their readers."""
