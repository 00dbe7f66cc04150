"""Fenchel-Young losses: for each map its loss, of scores (`scores`) and of densities (`densities`)."""
