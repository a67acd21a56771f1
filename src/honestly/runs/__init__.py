"""What runs leave behind: a round's record, a run's folder, a study's store, and their readers."""
