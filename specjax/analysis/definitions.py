"""What each number in a report means, in the words a reader needs beside it."""

DEFINITIONS = {
    "round": "One draft, one target pass that scores it, one accept decision. A step is one forward pass.",
    "gamma": "Draft tokens per round. 0 is plain decoding.",
    "tau": "Tokens a round emits, the residual or bonus token included. Tokens that a stop cut from the last "
    "block count, since leaving them out would bias tau low.",
    "tau_expected": "Mean over rounds of (1 - a^(g+1)) / (1 - a) with a = alpha_overlap and g the tokens "
    "drafted (Leviathan et al. 2023, Equation 1).",
    "tau, walk and accuracies": "What ranks of labels along plain decoding's greedy text say tau of a shape "
    "of heads is: tokens a round when rounds follow one another through the text; and 1 + the sum over nodes "
    "of the product, along the path, of rank accuracies where the earlier labels were found in the shape.",
    "alpha_overlap": "Acceptance of a single position: mean of the sum of min(p, q) over tested positions. "
    "Not defined for trees, nor is anything of Equation (1).",
    "alpha_accept": "Accepted draft tokens over tested ones. For the block and coupled rules it is the rate "
    "of that rule, not the paper's alpha. Of trees: over depths at which a child was tried.",
    "alpha_tau": "The alpha at which Equation (1) gives the tokens that were measured.",
    "alpha of tau": "The alpha at which Equation (1) gives the measured tau if every round drafted gamma "
    "tokens. It is alpha_tau for a drafter that always does, and lower for one that often has fewer.",
    "alpha needed": "The alpha at which (1 - a^(gamma+1)) / (1 - a) is the speedup times d(gamma) + "
    "v(gamma + 1). None where not even alpha = 1, gamma + 1 tokens a round, is enough.",
    "group": "Prompts of one category. The same definitions, over the group's own prompts; plain decoding of "
    "those is the group's baseline. No speedup where a batch mixed groups, whose time they share.",
    "c_k": "Acceptance of draft position k among the rounds that tested it, that is, accepted everything "
    "before it. E[tokens] = 1 + c_1 + c_1 c_2 + ...",
    "N": "Tokens that the target scores in a round: the pending one and gamma drafted ones, a chain or the "
    "nodes of a tree.",
    "bookkeeping": "What a round over a tree takes beyond its proposal, a target step of N tokens and the "
    "warping of their scores: mask, walk, gather of the accepted path. A share of the round.",
    "c": "Time of a draft step over that of a one-token target step.",
    "d(gamma)": "Time of a whole proposal, in one-token target steps.",
    "v(T)": "Time of a T-token target step, in one-token target steps. The paper supposes 1.",
    "speedup": "Tokens per second over plain decoding of the same prompts in the same process. Decoding "
    "alone: prefill and compilation excluded.",
    "speedup, cost model": "tau / (d + v) with the costs measured on this machine. It knows neither the "
    "loop's own overhead nor the tokens that a stop cuts from each last block.",
    "speedup, Theorem 3.8": "tau_expected / (gamma c + 1), which supposes v = 1.",
    "95 % interval": "Paired bootstrap over prompts (over batches at batch size above 1), over repeats for "
    "costs: BCa, a percentile interval below 12 prompts, none below 2.",
    "lossless": "The output is distributed as the target's own. A lossy rule says so in every line.",
}
