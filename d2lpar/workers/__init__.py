"""Several processes that train one network through MXNet's parameter server (ps-lite).

The launcher's side: `plan` says who takes part and where, `supervise` starts and
watches them. A role's side: `node` is its process, `place` says which worker it is, and
`group` is that worker among the others.
"""
