import sys, time, multiprocessing
sys.path.insert(0, "/work/main/tests/experiments")
from conftest import *
from test_kill_heads import responses, launch
import test_kill_heads as t
from configs import train_medusa_smollm2
def test_cpu(pair, responses, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    s={**train_medusa_smollm2.get_config().to_dict(),"target": pair[0],"responses": (responses,),"held_out_files": 1,"num_heads": 2,"num_ids": 60,"predicted_nodes": (),"decoded_nodes": (),"decode_prompts": 0,"steps": 24,"batch_size": 1,"context": 4,"warmup_steps": 1,"checkpoint_every": 2,"evaluate_every": 8}
    a=time.process_time(); v=lambda: multiprocessing.Value("i",-1)
    launch(s,str(tmp_path/"w"),str(tmp_path/"cache"),0,0,v(),v())
    print("CPU cold", time.process_time()-a)
    import jax; jax.clear_caches(); a=time.process_time()
    launch(s,str(tmp_path/"w2"),str(tmp_path/"cache"),0,0,v(),v())
    print("CPU warm disk cache", time.process_time()-a)
