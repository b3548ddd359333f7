"""Actions: automations with triggers (when), conditions (if) and steps (do).

One module per concept. Nothing is imported here, so that each module can be imported alone.
"""
