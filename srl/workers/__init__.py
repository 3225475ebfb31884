"""The three workers and the one loop that runs them."""
