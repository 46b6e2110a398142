"""From clusters to models and back.

The model over clusters, what a policy over them is proven to be worth, policies on the states
again, and agents to take away. Takes any labels, certified or not.
"""
