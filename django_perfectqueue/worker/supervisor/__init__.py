"""Fork, watch and replace the processes of a worker."""
