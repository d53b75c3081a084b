"""What runs leave on disk, and the numbers and words that are computed from it.

`kinds` is the schema; `files` and `checkpoints` read and write it, `atomic` whole or
not at all. `measurements` takes the numbers out of records; `rule` says which of two is
faster. `labels` has words for a run, `result` the table and answer of a chapter.
"""
