"""Records to pictures: never imports MXNet, needs no display."""
