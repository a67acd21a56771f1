"""Networks that find the median of up to 20 rows with few minima and maxima.

Each comparator is two letters, the rows of its smaller and its larger value. They were found by a search,
`benchmarks/median_networks.c` (3,000,000 steps, seed 1; 18 rows: seed 2), which need not have found the best; that they
are right is tested on every pattern of zeros and ones, which proves it for all values. 20 rows take 110 operations,
Batcher's sort without what the median does not need takes 150.
"""

MEDIAN_PAIRS: dict[int, str] = {
    5: "beadabdebdcdbc",
    6: "bfaecebdabefbdcebcde",
    7: "cgaeabfgefbcabfgcfbececdde",
    8: "bhagcdefacfhbcfgdfceabghcdefbdeg",
    9: "aidfghbcfiadchbgdgcfgiacbdfhcdfgdfefde",
    10: "dhcgaibjbdgiachjcfehaefjfgdebfeicdghdfegfgde",
    11: "jkabeicgejbgikacbcijaickgjbechdihicddgehghdeegeffg",
    12: "dehibjckafgldheiabklbkcgfjekbhefghiladbcjkfhegcdijfidggidf",
    13: "ahfmcdjkkmacckbielfjdhklbcceikablmdeijdiejhkcfhlbfeifhefhifhghfg",
    14: "dnakimbfadknhjegfjeiabmncfilfmbiklcdcejlefijabmnhkdgdifkbejmikdfehgjfhgihifg",
    15: "eoakcigmegikfnbjildggnbilmcdknbefigjagiodgilgoaicfjmgkeijldffigjjkefildgfgijgighhi",
    16: "bncohpaiflekdjgmdfkmopabegjldobmbfkojkfglmdeikfhajgpbcnocelnkobfehilfihkhnciijgheihlghijhjgi",
    17: "eqamjndhbcopglfkhqajbjhpfoclbgkplpbfdemnchjogjhkcflofhjldgknhmejlqafcemofgkljlfhjmehgjhkjkghhjijhi",
    18: "eranilgjcdopfqbmlpcgeodnlraghijkdjioknehchkpaenrmnefjqbijmficjipnqbehmfkgodlgnelgjiljkhidgloikhjlnegfglmilgj"
    "gijl",
    19: "aoesghlmbqcrhmglbeoraiksnpdfloehosaednfpcikqhiklpsadbgmrbcqrenfomqcgcdpqioekgkimfikndhlpdgmphkilklhifgmnimgk"
    "gikmikijjk",
    20: "gpenasbtdfoqjlikmrchdilqptaecmhrfsbokngjfkjolpeipsbeqtadkqdjioflhkjmnpegosbfdfoqprceklijotafopeffgnogmhngkjn"
    "mofhlmhigjknikjlklij",
}
