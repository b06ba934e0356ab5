"""The words that every part of postroad shares, and the connections to its servers."""
