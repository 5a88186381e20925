"""Jobs of several processes that train together, and what each of them says."""
