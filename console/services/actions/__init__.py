"""Actions: automations of when, if and do. One module per concept; nothing is imported here, so that each stands alone."""
