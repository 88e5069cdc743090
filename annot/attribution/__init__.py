"""Attribution of host and GPU time in a profile to layers."""
