"""The act and train edges: what they promise (base), and how bytes move (inline, shm)."""
