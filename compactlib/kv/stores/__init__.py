"""The stores behind the protocol; none of them knows another one."""
