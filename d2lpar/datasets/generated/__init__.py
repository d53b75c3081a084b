"""Pictures drawn from seeded grammars: stand-ins for data sets that cannot be had."""
