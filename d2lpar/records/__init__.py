"""What runs leave on disk, and the numbers and words that are computed from it.

`kinds` is the schema; `files` and `checkpoints` read and write it, `atomic` whole or
not at all. `measurements` takes the numbers of trainings out of records, `arms` those
of benchmarks; `rule` says which of two is faster. `labels` has words for a run,
`result` the table and answer of a chapter.
"""
