"""The only package that issues collectives."""
