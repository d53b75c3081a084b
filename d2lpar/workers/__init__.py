"""Several processes that train one network through MXNet's parameter server (ps-lite).

`plan` says which processes, `supervisor` starts and watches them, `role` is the program
of each. In a worker, `node` says which one it is, and `group` joins it to the others.
`figure` draws their records.
"""
