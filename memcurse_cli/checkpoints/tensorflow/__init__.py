"""TensorFlow's bundles and the folders around them."""
