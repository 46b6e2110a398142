"""Where to look: embeddings, FAISS retrieval, partitions worth trying.

Nothing said here is trusted, and nothing here touches a bound.
"""
