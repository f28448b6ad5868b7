"""Secure sums: the coordinator learns Σ xᵢ modulo 2**32 and no xᵢ, whoever drops out.

After Bonawitz et al. 2017, with the sparse graph of Bell et al. 2020. Four phases: sites give
keys (`site.make_keys`), share their seeds (`Site.make_shares`), send masked vectors
(`Site.mask`), and answer for each other (`Site.answer`); the coordinator adds (`MaskedSum`) and
takes the masks away (`unmask`).

Here is arithmetic alone. Who is in which phase, what is written down before what is sent, that
a site masks once and answers once a round: all that is the protocol's, which calls this.
"""
