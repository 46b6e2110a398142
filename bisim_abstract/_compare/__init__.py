"""Yardsticks: embeddings, other clusterings and learning agents beside a certificate.

Reads results and makes none.
"""
