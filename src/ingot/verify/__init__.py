"""What ``playbooks/verify.yml`` decides by: whether an image may be published."""
