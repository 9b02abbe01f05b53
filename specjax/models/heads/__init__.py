"""Small networks on a frozen target's last hidden state, one guess a head: Blockwise's and Medusa's."""
