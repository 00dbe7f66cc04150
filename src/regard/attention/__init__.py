"""Steps 1 to 3 together, and the exact algorithms that compute them."""
