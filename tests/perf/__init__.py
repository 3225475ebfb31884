"""What things cost, counted and never timed: bytes copied, memory taken, calls and system calls made."""
