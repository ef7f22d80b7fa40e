--- What PyTorch computes for the cases of nn_families_spec.lua; written by
--- tests/equivalence/make_layer_values.py: projections of results, gradients and buffers.
return {
  ['conv1d'] = {
    output = { -0.96400173817388379, -1.9709201950687874 },
    gradients = { -3.2183130778098192, -4.2865101629853735 },
    names = 'weight bias',
  },
  ['conv1d_same'] = {
    output = { 1.8347550941378756, -1.6714541324169878 },
    gradients = { -3.6923970128654462, -2.1650163952268171 },
    names = 'weight bias',
  },
  ['conv2d_reflect'] = {
    output = { 0.5389824954702358, -3.0939704469211167 },
    gradients = { 0.75286417263695471, -0.79183378100732726 },
    names = 'weight bias',
  },
  ['conv2d_circular'] = {
    output = { 14.899204964981339, -6.753400112888917 },
    gradients = { -8.5709938351192356, -19.375468028289138 },
    names = 'weight bias',
  },
  ['conv3d'] = {
    output = { 0.64460108943546157, -0.10824404092667517 },
    gradients = { -0.39649383610132094, 0.10445403847310927 },
    names = 'weight bias',
  },
  ['conv_transpose1d'] = {
    output = { -1.9670387747257738, -1.8386219545236342 },
    gradients = { 1.4404087612788761, 1.4757557477091843 },
    names = 'weight bias',
  },
  ['conv_transpose2d'] = {
    output = { 0.25643678438771511, -5.3983544845896185 },
    gradients = { -1.4804874993876735, -2.925133216488558 },
    names = 'weight bias',
  },
  ['conv_transpose3d'] = {
    output = { 1.1417350593240785, 8.5698921466532028 },
    gradients = { -6.5699698852522594, 6.3992499345067699 },
    names = 'weight bias',
  },
  ['batch_norm1d'] = {
    output = { 6.129642183861149, -10.184311256779486 },
    gradients = { 2.734356068067374, 5.3264593582690312 },
    buffers = { -3.5803029285667827, -1.4457899854488421 },
    names = 'weight bias running_mean running_var num_batches_tracked',
  },
  ['batch_norm1d_long'] = {
    output = { 21.215421818568259, -19.014517319595033 },
    gradients = { 20.940262657626054, 22.712545707119222 },
    buffers = { -3.0734070750714202, -1.1644671192489109 },
    names = 'running_mean running_var num_batches_tracked',
  },
  ['batch_norm3d'] = {
    output = { 575.32273947276315, -499.96929608143336 },
    gradients = { 136.87907372955388, 419.88412709742619 },
    names = 'weight bias',
  },
  ['instance_norm1d'] = {
    output = { 18.762430728784164, -18.674668011597628 },
    gradients = { 17.321995652081903, 18.786436298625404 },
  },
  ['instance_norm2d'] = {
    output = { 141.34122685999048, -126.58717783237643 },
    gradients = { 34.054085612240605, 103.91579076240255 },
    buffers = { -2.574799122150027, -1.1766616383905493 },
    names = 'weight bias running_mean running_var num_batches_tracked',
  },
  ['instance_norm2d_eval'] = {
    output = { 48.954673403100813, -45.98845679711895 },
    gradients = { 105.08491118392151, -43.592531592472589 },
    buffers = { -2.8198419188647121, -1.2888152781826248 },
    names = 'weight bias running_mean running_var num_batches_tracked',
  },
  ['instance_norm3d'] = {
    output = { 572.92144573815608, -497.88725213620154 },
    gradients = { 144.46762270152911, 411.03761786242234 },
    names = 'weight bias',
  },
  ['group_norm'] = {
    output = { 141.65368338938273, -127.04318255041943 },
    gradients = { 34.310007410248339, 104.12662916636988 },
    names = 'weight bias',
  },
  ['local_response_norm'] = {
    output = { 38.657605893902144, -33.711815660924771 },
    gradients = { 106.82599538336606, -19.016778076161145 },
  },
  ['rnn'] = {
    output = { -1.8309054883179776, 2.58643371657939 },
    gradients = { -47.169369722172121, -41.638042662711023 },
    names = 'weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 weight_ih_l0_reverse'
      .. ' weight_hh_l0_reverse bias_ih_l0_reverse bias_hh_l0_reverse weight_ih_l1 weight_hh_l1'
      .. ' bias_ih_l1 bias_hh_l1 weight_ih_l1_reverse weight_hh_l1_reverse bias_ih_l1_reverse'
      .. ' bias_hh_l1_reverse',
  },
  ['gru'] = {
    output = { 0.41399131876663064, -0.093596360935546685 },
    gradients = { 0.30240458518764357, 0.32752948382199643 },
    names = 'weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0',
  },
  ['gru_state'] = {
    output = { 1.3921950110674786, 0.34577588019115169 },
    gradients = { -0.28873998291830505, -3.5327327711871783 },
    names = 'weight_ih_l0 weight_hh_l0 weight_ih_l1 weight_hh_l1',
  },
  ['lstm'] = {
    output = { -4.7014609158313663, 6.6882908438842454 },
    gradients = { -1.644517190314646, 2.9890505991427787 },
    names = 'weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 weight_ih_l0_reverse'
      .. ' weight_hh_l0_reverse bias_ih_l0_reverse bias_hh_l0_reverse weight_ih_l1 weight_hh_l1'
      .. ' bias_ih_l1 bias_hh_l1 weight_ih_l1_reverse weight_hh_l1_reverse bias_ih_l1_reverse'
      .. ' bias_hh_l1_reverse',
  },
  ['lstm_projected'] = {
    output = { 1.6964721028091647, 2.2383634208974534 },
    gradients = { 2.0207354872473413, -1.5382825803810334 },
    names = 'weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 weight_hr_l0',
  },
  ['lstm_unbatched'] = {
    output = { -5.7621965682124907, 3.1473665901998076 },
    gradients = { -4.1249706054687403, 0.58703618452417827 },
    names = 'weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0',
  },
  ['rnn_lengths'] = {
    output = { -4.0642973299076335, -3.0821854757618738 },
    gradients = { 1.1603353871284634, 0.54065692282918321 },
    names = 'weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0',
  },
  ['gru_lengths'] = {
    output = { -1.9357981971910483, -1.3152211442705062 },
    gradients = { 1.8160829608400086, -1.2287689963785142 },
    names = 'weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 weight_ih_l0_reverse'
      .. ' weight_hh_l0_reverse bias_ih_l0_reverse bias_hh_l0_reverse weight_ih_l1 weight_hh_l1'
      .. ' bias_ih_l1 bias_hh_l1 weight_ih_l1_reverse weight_hh_l1_reverse bias_ih_l1_reverse'
      .. ' bias_hh_l1_reverse',
  },
  ['lstm_lengths'] = {
    output = { -0.18821802283987221, -0.41519043901386499 },
    gradients = { 0.019362645540636936, -9.3142554783190992 },
    names = 'weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 weight_ih_l0_reverse'
      .. ' weight_hh_l0_reverse bias_ih_l0_reverse bias_hh_l0_reverse weight_ih_l1 weight_hh_l1'
      .. ' bias_ih_l1 bias_hh_l1 weight_ih_l1_reverse weight_hh_l1_reverse bias_ih_l1_reverse'
      .. ' bias_hh_l1_reverse',
  },
  ['lstm_lengths_projected'] = {
    output = { 0.73484349256531067, -0.30015118876560148 },
    gradients = { 1.6875705959355931, -2.2829253578105981 },
    names = 'weight_ih_l0 weight_hh_l0 bias_ih_l0 bias_hh_l0 weight_hr_l0',
  },
  ['rnn_cell'] = {
    output = { -0.79996194048520808, -0.13802633637219736 },
    gradients = { -0.82145522052463593, -0.32006346418989629 },
    names = 'weight_ih weight_hh bias_ih bias_hh',
  },
  ['gru_cell'] = {
    output = { 1.4680315613307173, 1.1776773484754797 },
    gradients = { -0.85034841328290511, -3.2067712319459489 },
    names = 'weight_ih weight_hh bias_ih bias_hh',
  },
  ['lstm_cell'] = {
    output = { 0.10917225434129015, -0.02801131991345554 },
    gradients = { -0.48684045044545604, -0.96403156389286326 },
    names = 'weight_ih weight_hh',
  },
  ['encoder_layer'] = {
    output = { 1.3320862555908235, 1.0235530405649069 },
    gradients = { 9.2731367777458722, -5.0451000917930369 },
    names = 'self_attn.in_proj_weight self_attn.in_proj_bias self_attn.out_proj.weight'
      .. ' self_attn.out_proj.bias linear1.weight linear1.bias linear2.weight linear2.bias'
      .. ' norm1.weight norm1.bias norm2.weight norm2.bias',
  },
  ['encoder_layer_masked'] = {
    output = { 35.59890812746157, -162.10423439119049 },
    gradients = { -3.5322804399352945, 692.19422633373335 },
    names = 'self_attn.in_proj_weight self_attn.in_proj_bias self_attn.out_proj.weight'
      .. ' self_attn.out_proj.bias linear1.weight linear1.bias linear2.weight linear2.bias'
      .. ' norm1.weight norm1.bias norm2.weight norm2.bias',
  },
  ['decoder_layer'] = {
    output = { -3.7241968985437564, -6.6526883625533912 },
    gradients = { 45.295575072814252, -5.6392485142983961 },
    names = 'self_attn.in_proj_weight self_attn.in_proj_bias self_attn.out_proj.weight'
      .. ' self_attn.out_proj.bias multihead_attn.in_proj_weight multihead_attn.in_proj_bias'
      .. ' multihead_attn.out_proj.weight multihead_attn.out_proj.bias linear1.weight'
      .. ' linear1.bias linear2.weight linear2.bias norm1.weight norm1.bias norm2.weight'
      .. ' norm2.bias norm3.weight norm3.bias',
  },
  ['transformer'] = {
    output = { 0.18366351214173848, 4.121620066310399 },
    gradients = { -37.52623519466465, -10.181681259936305 },
    names = 'encoder.layers.0.self_attn.in_proj_weight encoder.layers.0.self_attn.in_proj_bias'
      .. ' encoder.layers.0.self_attn.out_proj.weight encoder.layers.0.self_attn.out_proj.bias'
      .. ' encoder.layers.0.linear1.weight encoder.layers.0.linear1.bias'
      .. ' encoder.layers.0.linear2.weight encoder.layers.0.linear2.bias'
      .. ' encoder.layers.0.norm1.weight encoder.layers.0.norm1.bias'
      .. ' encoder.layers.0.norm2.weight encoder.layers.0.norm2.bias'
      .. ' encoder.layers.1.self_attn.in_proj_weight encoder.layers.1.self_attn.in_proj_bias'
      .. ' encoder.layers.1.self_attn.out_proj.weight encoder.layers.1.self_attn.out_proj.bias'
      .. ' encoder.layers.1.linear1.weight encoder.layers.1.linear1.bias'
      .. ' encoder.layers.1.linear2.weight encoder.layers.1.linear2.bias'
      .. ' encoder.layers.1.norm1.weight encoder.layers.1.norm1.bias'
      .. ' encoder.layers.1.norm2.weight encoder.layers.1.norm2.bias encoder.norm.weight'
      .. ' encoder.norm.bias decoder.layers.0.self_attn.in_proj_weight'
      .. ' decoder.layers.0.self_attn.in_proj_bias decoder.layers.0.self_attn.out_proj.weight'
      .. ' decoder.layers.0.self_attn.out_proj.bias'
      .. ' decoder.layers.0.multihead_attn.in_proj_weight'
      .. ' decoder.layers.0.multihead_attn.in_proj_bias'
      .. ' decoder.layers.0.multihead_attn.out_proj.weight'
      .. ' decoder.layers.0.multihead_attn.out_proj.bias decoder.layers.0.linear1.weight'
      .. ' decoder.layers.0.linear1.bias decoder.layers.0.linear2.weight'
      .. ' decoder.layers.0.linear2.bias decoder.layers.0.norm1.weight'
      .. ' decoder.layers.0.norm1.bias decoder.layers.0.norm2.weight'
      .. ' decoder.layers.0.norm2.bias decoder.layers.0.norm3.weight'
      .. ' decoder.layers.0.norm3.bias decoder.norm.weight decoder.norm.bias',
  },
  ['avg_pool1d'] = {
    output = { 0.16347770547996965, -0.076499786670260916 },
    gradients = { -1.5782051586205901, -2.2196448940998543 },
  },
  ['avg_pool2d'] = {
    output = { 1.9350940216031622, -0.22888920436370572 },
    gradients = { 2.4306794273296815, -2.6232317616228507 },
  },
  ['avg_pool3d'] = {
    output = { 1.9211190846310844, 1.9389033496350945 },
    gradients = { -1.7209208482903315, -4.70239649895223 },
  },
  ['max_pool1d'] = {
    output = { -0.54933671031081455, 0.09076951530978139 },
    gradients = { -1.895872274820221, -0.53516052800986658 },
  },
  ['max_pool3d'] = {
    output = { -0.8388926890173295, -0.97295380972288781 },
    gradients = { -1.2335248388933833, -0.23938385374341431 },
  },
  ['lp_pool1d'] = {
    output = { -0.90412776349863855, -0.72908551012153033 },
    gradients = { -0.84448163743349669, 0.62027670277189695 },
  },
  ['lp_pool2d'] = {
    output = { -1.310489500907025, -2.4058643915634721 },
    gradients = { -0.18575486280024867, 0.53884209426604102 },
  },
  ['adaptive_avg_pool1d'] = {
    output = { -0.096517696671452768, 0.74974245339067203 },
    gradients = { -1.8691154800336667, -0.95186846503103606 },
  },
  ['adaptive_avg_pool3d'] = {
    output = { -0.41481395500094725, 0.19173222376845322 },
    gradients = { -0.61363060045189721, 0.61909872785448916 },
  },
  ['adaptive_max_pool1d'] = {
    output = { -0.32070399941192529, 0.43056029443891358 },
    gradients = { -2.178446292830396, -1.0590027301109455 },
  },
  ['adaptive_max_pool2d'] = {
    output = { 0.16093262466187563, 0.2215152390366496 },
    gradients = { 1.250924454236062, 1.1847798694609635 },
  },
  ['adaptive_max_pool3d'] = {
    output = { 0.24886730918106276, -1.1512420724507573 },
    gradients = { 1.7056565405140123, -0.062213280466773879 },
  },
  ['constant_pad'] = {
    output = { -0.039930059263921236, 3.1725503161778246 },
    gradients = { -6.8125426307220742, -2.3567749473751349 },
  },
  ['reflection_pad'] = {
    output = { -0.76885182932205431, -0.97138927044767931 },
    gradients = { -0.85033406044736726, -0.003191540345571009 },
  },
  ['replication_pad'] = {
    output = { -52.131896698648248, -60.358965188912848 },
    gradients = { 56.034703407391639, 129.19923264011527 },
  },
  ['circular_pad'] = {
    output = { 0.51465498427552914, -0.79515014337330481 },
    gradients = { 2.2042458131338192, 0.1832621253189034 },
  },
  ['pixel_shuffle'] = {
    output = { 0.14561010012764214, -0.20128461287918831 },
    gradients = { 0.17284540559943817, -0.41113493792839195 },
  },
  ['pixel_unshuffle'] = {
    output = { -1.7693777760029934, 1.5335343476162597 },
    gradients = { -4.9618270285223041, 0.88592290008794095 },
  },
  ['channel_shuffle'] = {
    output = { 9.5368162999548787, -8.9416998731748336 },
    gradients = { 24.67427809421692, -7.7654667496712602 },
  },
  ['unfold'] = {
    output = { -0.68843515797695831, -1.0228338438158471 },
    gradients = { 1.172236970649287, 1.9263562636866451 },
  },
  ['fold'] = {
    output = { -4.0725363082212231, 0.55113033509670384 },
    gradients = { -6.2791787885429384, 4.3347799736856141 },
  },
  ['unflatten'] = {
    output = { 7.6873754891859321, -7.0578363556526007 },
    gradients = { 21.382424896763585, -4.4744594954800272 },
  },
  ['upsample_nearest'] = {
    output = { -1.2731481997594942, -0.32909671831704024 },
    gradients = { -0.7967840111086627, 2.0678560046370076 },
  },
  ['upsample_exact'] = {
    output = { -2.5625060875962093, -1.5668560336875395 },
    gradients = { -0.63651426576477554, 4.2146668287702429 },
  },
  ['upsample_linear'] = {
    output = { -1.348045006479619, -0.90882887490097153 },
    gradients = { -0.078507704633953068, 2.4021169152898962 },
  },
  ['upsample_bilinear'] = {
    output = { -1.6348141759484383, -1.9488833915887964 },
    gradients = { 1.8402335383151813, 4.0798721981545878 },
  },
  ['upsample_bilinear_sizes'] = {
    output = { -3.3221923493977799, -1.4978257405197599 },
    gradients = { 0.50140718213658086, 7.4914213883810685 },
  },
  ['upsample_bicubic'] = {
    output = { -3.4620034819183352, -5.779009335203467 },
    gradients = { 7.0563025634992229, 10.247074800542073 },
  },
  ['upsample_trilinear'] = {
    output = { 0.63024678591064243, 0.2815844388445895 },
    gradients = { 0.10733120216534875, -1.2043622630061341 },
  },
  ['upsample_area'] = {
    output = { 2.1342920638148568, -1.2953041369888272 },
    gradients = { 4.7949328102488744, -1.7488831841159374 },
  },
  ['upsample_antialias'] = {
    output = { 1.5990166722903414, -0.96134914272502103 },
    gradients = { 3.6187506673478795, -1.2716280221560319 },
  },
  ['bilinear'] = {
    output = { 1.1719128621091139, -0.50937617299424165 },
    gradients = { -0.03310995564592209, 0.95185762190989809 },
    names = 'weight bias',
  },
  ['bag_mean'] = {
    output = { -0.11578793616880725, -0.77635632166683299 },
    gradients = { 0.97364679055332992, -0.8904066855070204 },
    names = 'weight',
  },
  ['bag_max'] = {
    output = { -0.11578793616880725, -0.77635632166683299 },
    gradients = { 0.97364679055332981, -0.89040668550702062 },
    names = 'weight',
  },
  ['bag_sum'] = {
    output = { -1.2918238507499897, -0.55339809277766339 },
    gradients = { -0.17639996712397699, 2.5420887121006208 },
  },
  ['bag_offsets'] = {
    output = { 0.0059169045882404014, -0.0029282799686173866 },
    gradients = { 0.0038773304338722264, -0.018603345619813669 },
    names = 'weight',
  },
  ['prelu'] = {
    output = { 9.0016702369582955, -8.0489248678752965 },
    gradients = { 21.35897297396226, -6.2486252121993182 },
    names = 'weight',
  },
  ['cosine_similarity'] = {
    output = { 0.37262736609787706, -0.27161723973263241 },
    gradients = { -0.9204210498482055, -0.99859888032951227 },
  },
  ['pairwise_distance'] = {
    output = { 0.52227617623634259, -1.5950393719340921 },
    gradients = { 1.624632381499973, -1.3467769942553733 },
  },
  ['cdist'] = {
    output = { -0.72096562998762082, -2.7358521291664646 },
    gradients = { 0.67349636410266078, -0.41828936481971191 },
  },
  ['grid_sample'] = {
    output = { 0.42978128644596036, -0.042763739904782216 },
    gradients = { -3.5990391002504722, 2.261301797652294 },
  },
  ['weight_norm'] = {
    output = { -1.7973004724369055, -0.26062511762478868 },
    gradients = { 1.9410436086908893, 2.7031387802751237 },
    names = 'bias parametrizations.weight.original0 parametrizations.weight.original1',
  },
  ['weight_norm_conv'] = {
    output = { 2.0759424658152641, -1.4039301204377432 },
    gradients = { -0.49375794616169699, -0.97227433199885782 },
    names = 'bias parametrizations.weight.original0 parametrizations.weight.original1',
  },
  ['spectral_norm'] = {
    output = { -1.5687018596730686, -0.4872489682429807 },
    gradients = { 1.0764201554829227, 1.6050827858919308 },
    buffers = { -0.67072258222192604, -1.2397571805067555 },
    names = 'bias parametrizations.weight.original parametrizations.weight.0._u'
      .. ' parametrizations.weight.0._v',
  },
  ['spectral_norm_conv'] = {
    output = { -2.2991949033968231, -2.7454589839246877 },
    gradients = { 2.9721919629126301, 3.0032498557760956 },
    buffers = { -0.095601391790462564, -0.79067204028634186 },
    names = 'bias parametrizations.weight.original parametrizations.weight.0._u'
      .. ' parametrizations.weight.0._v',
  },
  ['ReLU6'] = {
    output = { 19.112196171011483, -17.23016734195275 },
    gradients = { 56.212669245994967, -7.463750206952982 },
  },
  ['LeakyReLU'] = {
    output = { 23.086296709847982, -20.583023913490191 },
    gradients = { 66.751046033864355, -10.010293971811695 },
  },
  ['ELU'] = {
    output = { 30.489054398283379, -26.780856129406622 },
    gradients = { 82.055435227653689, -11.650591286194658 },
  },
  ['SELU'] = {
    output = { 48.654984744957353, -42.090981926862888 },
    gradients = { 123.96863541869283, -18.357716199888035 },
  },
  ['CELU'] = {
    output = { 34.101330366537198, -29.785816663444649 },
    gradients = { 88.086704943055139, -11.479306728573981 },
  },
  ['GLU'] = {
    output = { -2.1033095656010272, -8.4625998078908058 },
    gradients = { 14.317185032566524, 11.561566217315779 },
  },
  ['Hardtanh'] = {
    output = { 23.74662685078885, -20.436804912867551 },
    gradients = { 23.619743463472101, 19.878057188849027 },
  },
  ['Hardswish'] = {
    output = { 19.476092616006305, -17.006548138942371 },
    gradients = { 54.373192076174249, -10.125613094112182 },
  },
  ['Hardsigmoid'] = {
    output = { 5.6003070859041042, -6.4664306278801211 },
    gradients = { 18.150759405158411, -3.3660782721913702 },
  },
  ['Hardshrink'] = {
    output = { 37.632405994188694, -33.120745964979868 },
    gradients = { 87.025172892621583, -39.476769470696787 },
  },
  ['Softshrink'] = {
    output = { 29.126790185216411, -25.444210566149877 },
    gradients = { 99.783710172622321, -29.875731911474439 },
  },
  ['Tanhshrink'] = {
    output = { 2.2558246229885954, -1.9651038359668713 },
    gradients = { 13.867493066065009, -7.7446090797548184 },
  },
  ['Softplus'] = {
    output = { 10.669450695385486, -11.394919712369926 },
    gradients = { 67.107435049123822, -15.989273838343653 },
  },
  ['Softsign'] = {
    output = { 27.461712454171547, -23.95444595687686 },
    gradients = { 62.187684903898543, -1.5025386285569495 },
  },
  ['LogSigmoid'] = {
    output = { 20.74599810539879, -15.880258548701011 },
    gradients = { 54.511194506353014, -10.077832472092783 },
  },
  ['Threshold'] = {
    output = { -76.203746256266754, 67.792466048279636 },
    gradients = { 48.4638472843328, -15.542407792113357 },
  },
  ['Softmax'] = {
    output = { 8.4221921749506432, -8.0942948392063077 },
    gradients = { 24.048643141200287, -3.8138495064446918 },
  },
  ['LogSoftmax'] = {
    output = { 41.562717588015488, -30.240000451133653 },
    gradients = { 107.02288122886679, -20.047745462868473 },
  },
  ['Softmin'] = {
    output = { -16.495159004308533, 12.832956139616071 },
    gradients = { -40.73750143979251, 5.84012533448659 },
  },
  ['Mish'] = {
    output = { 23.243060380818562, -20.312015784185487 },
    gradients = { 64.438704041768105, -11.737205594988986 },
  },
  ['Softmax2d'] = {
    output = { 8.4221921749506432, -8.0942948392063077 },
    gradients = { 24.048643141200287, -3.8138495064446918 },
  },
  ['L1Loss'] = {
    output = { 0.33112765211780909, -0.12846622806097927 },
    gradients = { 0.6581422750898166, -0.2845028460253074 },
  },
  ['SmoothL1Loss'] = {
    output = { 0.21868750134224182, -0.084843286997737161 },
    gradients = { 0.56246003621648866, -0.34647460870328323 },
  },
  ['HuberLoss'] = {
    output = { 0.78727500483207047, -0.30543583319185375 },
    gradients = { 2.0248561303793591, -1.2473085913318196 },
  },
  ['NLLLoss'] = {
    output = { 0.035091775664056572, -0.013614411320500383 },
    gradients = { 0.36766386197282747, 0.29306967404407669 },
  },
  ['CrossEntropyLoss'] = {
    output = { 1.2376647556867846, -0.48017168530076748 },
    gradients = { 0.28191867717486374, -0.12506243275255169 },
    buffers = { -0.18415516752889977, -1.1827461761685882 },
    names = 'weight',
  },
  ['KLDivLoss'] = {
    output = { -1.3072959776914175, 0.50718622301454708 },
    gradients = { -0.30344431261829269, 0.21180294975297789 },
  },
  ['KLDivLoss_again'] = {
    output = { -0.024030374199172699, 0.009322965063525597 },
    gradients = { 0.021720925150165049, -0.11629264296396594 },
  },
  ['BCELoss'] = {
    output = { 0.24452793225989106, -0.094868492293124704 },
    gradients = { -0.023685043032121374, -0.13773490914518721 },
    buffers = { -0.18415516752889977, -1.1827461761685882 },
    names = 'weight',
  },
  ['BCEWithLogitsLoss'] = {
    output = { 0.42595888631772155, -0.16525751046253398 },
    gradients = { 0.00094777399972186677, -0.081342575452708371 },
    buffers = { -0.18415516752889977, -1.1827461761685882 },
    names = 'pos_weight',
  },
  ['PoissonNLLLoss'] = {
    output = { 1.6911742677401371, -0.65611789828131717 },
    gradients = { 0.033777983807670831, -0.07754285395015266 },
  },
  ['PoissonNLLLoss_again'] = {
    output = { 1.4749765438407241, -0.57224055995849687 },
    gradients = { 0.036834381442854947, 0.19354398022128905 },
  },
  ['GaussianNLLLoss'] = {
    output = { 0.58038157869800988, -0.22516824485827855 },
    gradients = { 0.69052893897732126, -0.47480192900137891 },
  },
  ['MarginRankingLoss'] = {
    output = { 0.18271676342766527, -0.070887868321885733 },
    gradients = { 0.30692415860694, -0.072558726068220086 },
  },
  ['HingeEmbeddingLoss'] = {
    output = { 0.12030350009234668, -0.046673652232157484 },
    gradients = { 0.054090601100764295, -0.17943244841021255 },
  },
  ['CosineEmbeddingLoss'] = {
    output = { 0.56837804640133138, -0.22051128399228059 },
    gradients = { 0.073098606964524526, 0.079307385550470788 },
  },
  ['TripletMarginLoss'] = {
    output = { 0.84150493524029768, -0.32647519539249448 },
    gradients = { 0.17938710669973368, 0.15036638809938618 },
  },
  ['TripletMarginWithDistanceLoss'] = {
    output = { 0, 0 },
    gradients = { 0, 0 },
  },
  ['SoftMarginLoss'] = {
    output = { 0.58063481643201476, -0.22526649245639438 },
    gradients = { 0.078609969455620293, 0.021874313238140451 },
  },
  ['MultiMarginLoss'] = {
    output = { 0.29793307193118951, -0.11558786383688374 },
    gradients = { 0.28893540261828266, 0.13740224985030208 },
    buffers = { -0.18415516752889977, -1.1827461761685882 },
    names = 'weight',
  },
  ['MultiLabelMarginLoss'] = {
    output = { 0.73806196247633693, -0.28634285233564616 },
    gradients = { -0.15904040566530014, -0.32042759672583121 },
  },
  ['MultiLabelSoftMarginLoss'] = {
    output = { 0.2433872462743609, -0.094425945060884059 },
    gradients = { -0.0025996338231991049, -0.026188510487293502 },
    buffers = { -0.18415516752889977, -1.1827461761685882 },
    names = 'weight',
  },
  ['CTCLoss'] = {
    output = { -2.0577613969496658, 0.79834119326755348 },
    gradients = { -0.32371190808033473, -2.9982095622212492 },
  },
}
