"""What several tests share: receivers, fresh providers, plain values."""
