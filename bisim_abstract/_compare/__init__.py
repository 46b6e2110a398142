"""Yardsticks: embeddings, other clusterings and learning agents beside a certificate.

Models are compared with models here as well. Asks others for proofs, and reads them.
"""
