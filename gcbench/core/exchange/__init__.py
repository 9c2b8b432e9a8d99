"""Exchanges: how the codes of a method are sent and added up."""
