"""polycert: certified radii of neural networks in any l_p ball inside a box."""
