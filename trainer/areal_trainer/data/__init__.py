"""The data layout: from the ledger's samples to rows of packed tokens. Plain numpy until a micro-batch is made."""
