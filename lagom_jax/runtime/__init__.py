"""While a job runs: what its processes have to agree on."""
