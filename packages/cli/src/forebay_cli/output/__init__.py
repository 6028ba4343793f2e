"""Results of commands on terminals, in pipes and as JSON."""
