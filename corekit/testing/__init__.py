"""What a plugin author tests with: kits, fakes and a harness."""
