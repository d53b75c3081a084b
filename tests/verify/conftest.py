"""The programs in subjects/ run in processes of their own only."""

collect_ignore = ["subjects"]
