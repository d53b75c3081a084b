"""Several processes that train one network through MXNet's parameter server."""
