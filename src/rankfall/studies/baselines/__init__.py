"""Methods that are not trained by gradient descent, for comparisons."""
